"""The live page: its files, the stream of what it draws, and what it says in words.

Nothing is computed while nobody watches.
"""
