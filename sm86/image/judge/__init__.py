"""What is in an image, judged: facts -> findings, two images -> their differences; the tables that this is held to."""
