module github.com/pebbe/zmq4

go 1.24.1
