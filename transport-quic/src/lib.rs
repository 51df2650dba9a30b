//! kvferry's transport over QUIC: the authenticated control channel, and a data path that works on any network.
