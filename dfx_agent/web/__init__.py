"""The embedded page and the HTTP API: the only folder that imports fastapi."""
