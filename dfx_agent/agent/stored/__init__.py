"""Files that outlive an agent: the state from which the next agent continues, and evidence."""
