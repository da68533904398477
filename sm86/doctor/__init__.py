"""What a machine is, as typed facts, and what follows from them: findings, placement, a bundle that can be shown."""
