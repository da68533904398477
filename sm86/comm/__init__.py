"""The all-reduce of a decode step, measured: every way the rig has, beside one another, without a model."""
