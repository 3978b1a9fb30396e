"""One module for each kind of device; its class ``Backend`` is a ``protocol.Backend``.

Nothing else names it: ``registry`` takes what lies here.
"""
