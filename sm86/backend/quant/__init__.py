"""The W4A16 AutoRound checkpoint: what it must hold, and the limits its numbers must keep."""
