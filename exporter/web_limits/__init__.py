"""What one client may take from the others: time, memory, connections.

Stands between the sockets and aiohttp, which has no bound on how long a request may take to come
or an answer to be read. What is refused is counted by reason and written nowhere: a client could
fill the log with it.
"""
