"""HTTP port of all workers: health, metrics and the status page.

listener  threads that accept connections, outside the event loop; TLS; requests and answers
site      checks of the Host header and of permissions, and answers by path
status    content of the status page, as a dictionary: pure
page      HTML of the page, from that dictionary: pure

h11 parses requests. No HTTP server is used: the port has five paths without request bodies, and
aiohttp or uvicorn with starlette would add seven packages and a second event loop to the process
that serves gRPC. Idle threads of the standard library wait in the kernel.
"""
