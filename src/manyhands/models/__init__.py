"""Chat models: the wire protocol, the OpenAI-compatible client; hosts, addresses and headers; the check of an endpoint; prices,
estimates, the simulated model."""
