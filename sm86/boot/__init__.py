"""A boot as it passes: phases from events, deadlines, and the named classes of failure. Pure."""
