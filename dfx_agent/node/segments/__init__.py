"""Files of guests: segments and what lies beside them, each read as its owner wrote it."""
