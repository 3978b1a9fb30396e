"""Facts on their way between machines: rounded and sent by nodes, put together by the hub.

Nothing is judged here: a node and a hub give what they have to ``job``.
"""
