"""One module per kind of device; its class ``Backend`` implements ``protocol.DeviceBackend``.

Nothing else names the modules: ``registry`` loads every module in this folder.
"""
