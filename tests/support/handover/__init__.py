"""What an interpreter does at its start if this folder is on its path (see ``tests.support.forked``)."""
