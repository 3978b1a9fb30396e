"""What the devices of this machine say of themselves, asked by the agent; one file each."""
