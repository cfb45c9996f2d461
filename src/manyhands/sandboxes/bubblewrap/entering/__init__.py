"""The program by which commands enter worlds made of images."""
