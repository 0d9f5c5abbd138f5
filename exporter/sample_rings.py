"""Ring samples → covered time and its integral; a gap is neither busy nor idle, it is missed."""
