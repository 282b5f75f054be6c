"""ZeroMQ around the codec: frames and endpoint rules without sockets, publisher and subscriber with them."""
