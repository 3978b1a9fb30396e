"""What is concluded: one room for each kind of verdict."""
