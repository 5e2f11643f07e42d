"""Search services over HTTP: one small module each, over one shared client and one cache of responses.

`client.py` sends requests (rate limits, retries, size limits), `cache.py` stores every response, `service.py` has the
base class of the services, `parsing.py` reads JSON and XML and cleans text. `retrieval/sources/registry.py` opens them.
"""
