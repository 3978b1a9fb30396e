"""What a machine tells about itself: one file per device, a thin read and a pure parse."""
