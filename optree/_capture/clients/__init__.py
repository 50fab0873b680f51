"""The libraries that send to models, a module each: httpx, aiohttp, botocore, websockets; beside the last the events that go through it.

In come their calls, by `hooks`; out go exchanges, and in a replay the recorded answer in the client's own form. A client's objects are
only read, but for an answer's stream, which one of ours stands around.
"""
