// A testee in Go with vmihailenco/msgpack/v5.
//
// main.go speaks the protocol, batch.go takes batches and events apart, values.go reads what is in them. The package's
// Unmarshal would convert between types and keep the last of two equal keys, and a hash would have to be an int64 or a uint64;
// its low-level decoder leaves all that to the caller, so that is what is used here.
package main

import (
	"bufio"
	"encoding/json"
	"os"
	"runtime/debug"
)

type hello struct {
	Protocol int      `json:"protocol"`
	Name     string   `json:"name"`
	Version  string   `json:"version"`
	Language string   `json:"language"`
	Decoder  string   `json:"decoder"`
	Dialects []string `json:"dialects"`
}

type request struct {
	ID      json.RawMessage `json:"id"`
	Payload []byte          `json:"payload"`
}

type answer struct {
	ID     json.RawMessage `json:"id"`
	Events []event         `json:"events"`
	TS     *float64        `json:"ts"`
	DPRank any             `json:"dp_rank"`
	Faults []string        `json:"faults,omitempty"`
}

type refusal struct {
	ID    json.RawMessage `json:"id"`
	Error string          `json:"error"`
}

var dialects = []string{
	"slot6-b2", "slot6", "slot7", "slot8", "slot8-lora", "slot9", "slot10", "slot12", "dynamo", "sglang-map1", "sglang-map2",
	"vllm-map1", "vllm-map2", "vllm-map3", "vllm-map4", "vllm-map5",
}

func main() {
	out := json.NewEncoder(os.Stdout)
	must(out.Encode(hello{1, "go", libraryVersion(), "Go", "vmihailenco/msgpack/v5 Decoder", dialects}))
	in := json.NewDecoder(bufio.NewReader(os.Stdin))
	for in.More() {
		var asked request
		must(in.Decode(&asked))
		found, err := readBatch(asked.Payload)
		if err != nil {
			must(out.Encode(refusal{asked.ID, err.Error()}))
			continue
		}
		must(out.Encode(answer{asked.ID, found.events, found.ts, found.rank, found.faults}))
	}
}

// libraryVersion is the version of the msgpack package that was built in.
func libraryVersion() string {
	info, _ := debug.ReadBuildInfo()
	for _, dependency := range info.Deps {
		if dependency.Path == "github.com/vmihailenco/msgpack/v5" {
			return dependency.Version[1:]
		}
	}
	return "unknown"
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}
