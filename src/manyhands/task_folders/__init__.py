"""Task folders: an instruction, an environment and a verifier, as Harbor and Terminal-Bench 2 lay them out."""
