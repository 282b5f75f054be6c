// Package zmq4 stands for github.com/pebbe/zmq4 while the testee is compiled: llm-d's decoder lies in one package with its
// subscriber, and the real zmq4 needs cgo and libzmq. It has what that subscriber names, and opens no socket.
package zmq4

import (
	"errors"
	"time"
)

var errNoSockets = errors.New("this build of the decoder has no sockets")

type (
	Type  int
	State int
	Flag  int
)

const (
	SUB    Type  = 2
	POLLIN State = 1
)

type Socket struct{}

func NewSocket(Type) (*Socket, error) { return nil, errNoSockets }

func (*Socket) Close() error                            { return errNoSockets }
func (*Socket) Bind(string) error                       { return errNoSockets }
func (*Socket) Connect(string) error                    { return errNoSockets }
func (*Socket) SetSubscribe(string) error               { return errNoSockets }
func (*Socket) RecvMessageBytes(Flag) ([][]byte, error) { return nil, errNoSockets }

type Polled struct{}

type Poller struct{}

func NewPoller() *Poller { return &Poller{} }

func (*Poller) Add(*Socket, State) int               { return 0 }
func (*Poller) Poll(time.Duration) ([]Polled, error) { return nil, errNoSockets }
