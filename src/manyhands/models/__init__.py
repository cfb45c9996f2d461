"""Chat models: the wire protocol, the OpenAI-compatible client, prices, the simulated model."""
