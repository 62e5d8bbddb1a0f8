"""An OpenAI-compatible HTTP server over one engine: `draftproof serve`.

loop       the engine in a thread of its own: admits, steps, hands out what each round gave
service    between asyncio and that thread: one stream of updates per request
app        the HTTP routes
"""
