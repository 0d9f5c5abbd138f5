"""Two runs held against each other: what one gives of the other, and why."""
