"""Log files and stdin as sources."""
