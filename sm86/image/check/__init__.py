"""What is in an image, proven from outside: a probe that runs inside, rules that judge its facts, a comparison."""
