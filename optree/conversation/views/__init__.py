"""The views of a conversation, each a function of its `Stream`, and their renderings."""
