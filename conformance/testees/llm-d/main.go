// Testee: the decoder of llm-d's KV cache indexer, kvevents.EventBatch and kvevents.UnmarshalKVEvent.
//
// Each request's payload is read as the indexer's pool reads it: the batch into an EventBatch, each event of it by
// UnmarshalKVEvent, an event that does not decode passed over, each hash turned into 64 bits by getHashAsUint64, a hash that
// has no 64 bits passed over, and with such a parent the whole event.
//
// The module's path is that of its second name; this release is published under the first one (go.mod).
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"log"
	"os"
	_ "unsafe" // for go:linkname

	"github.com/llm-d/llm-d-kv-cache/pkg/kvevents"
	"github.com/vmihailenco/msgpack/v5"
)

const version = "0.5.0"

const notes = "As the indexer's pool reads: an event that does not decode is passed over, and so is a hash that " +
	"getHashAsUint64 does not take. Byte hashes are kept as their last 8 bytes. A medium stands as it is decoded; the pool " +
	"lower-cases it, puts GPU for none, and ignores AllBlocksCleared. lora_id is decoded and never used. Claimed are the " +
	"layouts of vLLM 0.12 to 0.16: its documentation asks for 0.12.0 or later."

// The indexer's own conversion of a hash; it is not exported.
//
//go:linkname getHashAsUint64 github.com/llm-d/llm-d-kv-cache/pkg/kvevents.getHashAsUint64
func getHashAsUint64(hash any) (uint64, error)

type hello struct {
	Protocol int      `json:"protocol"`
	Name     string   `json:"name"`
	Version  string   `json:"version"`
	Language string   `json:"language"`
	Dialects []string `json:"dialects"`
	Decoder  string   `json:"decoder"`
	Homepage string   `json:"homepage"`
	Notes    string   `json:"notes"`
}

type request struct {
	ID      json.RawMessage `json:"id"`
	Payload []byte          `json:"payload"`
}

type answer struct {
	ID     json.RawMessage `json:"id"`
	Events []event         `json:"events"`
	TS     any             `json:"ts"`
	DPRank *int            `json:"dp_rank"`
}

type refusal struct {
	ID    json.RawMessage `json:"id"`
	Error string          `json:"error"`
}

type event map[string]any

func main() {
	say(hello{
		Protocol: 1,
		Name:     "llm-d",
		Version:  version,
		Language: "Go",
		Dialects: []string{"slot7", "slot8-lora"},
		Decoder:  "kvevents.UnmarshalKVEvent",
		Homepage: "https://github.com/llm-d/llm-d-kv-cache",
		Notes:    notes,
	})
	in := bufio.NewReader(os.Stdin)
	for {
		line, err := in.ReadBytes('\n')
		if err != nil {
			return
		}
		var asked request
		if err := json.Unmarshal(line, &asked); err != nil {
			log.Fatal(err)
		}
		var batch kvevents.EventBatch
		if err := msgpack.Unmarshal(asked.Payload, &batch); err != nil {
			say(refusal{ID: asked.ID, Error: err.Error()})
			continue
		}
		say(answer{ID: asked.ID, Events: neutral(batch.Events), TS: seconds(batch.TS), DPRank: batch.DataParallelRank})
	}
}

func say(value any) {
	if err := json.NewEncoder(os.Stdout).Encode(value); err != nil {
		log.Fatal(err)
	}
}

func neutral(events []msgpack.RawMessage) []event {
	found := []event{}
	for _, raw := range events {
		read, err := kvevents.UnmarshalKVEvent(raw)
		if err != nil {
			log.Printf("passed over: %v", err)
			continue
		}
		switch read := read.(type) {
		case kvevents.BlockStored:
			if told, err := stored(read); err == nil {
				found = append(found, told)
			} else {
				log.Printf("passed over: %v", err)
			}
		case kvevents.BlockRemoved:
			told := event{"type": kvevents.BlockRemovedEventTag, "block_hashes": hashes(read.BlockHashes)}
			put(told, "medium", read.Medium)
			found = append(found, told)
		case kvevents.AllBlocksCleared:
			found = append(found, event{"type": kvevents.AllBlocksClearedEventTag})
		}
	}
	return found
}

func stored(read kvevents.BlockStored) (event, error) {
	told := event{
		"type":         kvevents.BlockStoredEventTag,
		"block_hashes": hashes(read.BlockHashes),
		"token_ids":    append([]uint32{}, read.TokenIds...),
		"block_size":   integer(read.BlockSize),
	}
	if read.ParentBlockHash != nil {
		parent, err := getHashAsUint64(read.ParentBlockHash)
		if err != nil {
			return nil, err
		}
		told["parent_block_hash"] = hex(parent)
	}
	if read.LoraID != nil {
		told["lora_id"] = integer(*read.LoraID)
	}
	put(told, "medium", read.Medium)
	put(told, "lora_name", read.LoraName)
	return told, nil
}

func put(told event, name string, value *string) {
	if value != nil {
		told[name] = *value
	}
}

func hashes(raw []any) []string {
	found := []string{}
	for _, value := range raw {
		hash, err := getHashAsUint64(value)
		if err != nil {
			log.Printf("passed over: %v", err)
			continue
		}
		found = append(found, hex(hash))
	}
	return found
}

func hex(hash uint64) string {
	return fmt.Sprintf("%016x", hash)
}

// An integer of the neutral form: JSON readers lose those past 53 bits.
func integer(value int) any {
	if value > 1<<53-1 || value < -(1<<53-1) {
		return map[string]string{"int": fmt.Sprint(value)}
	}
	return value
}

// JSON has no NaN and no infinity.
func seconds(ts float64) any {
	if ts-ts != 0 {
		return nil
	}
	return ts
}
