"""Search services over HTTP: one small module each, over one shared client and one cache of responses.

`http.py` sends (rate limits, retries, size limits), `cache.py` keeps every response, `service.py` is what all services
have in common, `reading.py` turns what came from outside into plain text. `retrieval/sources/opening.py` opens them.
"""
