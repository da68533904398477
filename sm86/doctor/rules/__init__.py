"""One function for each question: a rig and what is wanted of it -> a finding, None where it does not apply. Pure."""
