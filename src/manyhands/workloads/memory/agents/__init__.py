"""The agents whose memory is tested: some are built in, all others are reached as programs, addresses or Python classes."""
