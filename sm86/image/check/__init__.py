"""What runs inside an image to say what is in it: facts, imports and compilers as they are; nothing here judges."""
