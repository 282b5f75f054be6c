// Testee: the decoder of AIBrix' gateway, kvcache.DecodeEventBatch.
//
// Each request's payload goes to that function, and the answer is what its EventBatch holds. Its events keep hashes as int64,
// the parent, and the tokens as one byte string a block; nothing else. The size of a block is that of its first byte string.
package main

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"log"
	"os"

	"github.com/vllm-project/aibrix/pkg/cache/kvcache"
)

const version = "0.7.0"

const notes = "Events keep hashes, the parent and the tokens alone: medium, lora_id, LoRA name, extra_keys, group and DP rank " +
	"are dropped. The answer's block_size is the length of the first group of tokens that the decoder made; 0 where there " +
	"are no tokens. Time stamps are kept in whole nanoseconds. Claimed are the array layouts of vLLM: the documentation asks " +
	"for vLLM 0.7.0 or later and describes events that are arrays."

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
	Events []any           `json:"events"`
	TS     float64         `json:"ts"`
}

type refusal struct {
	ID    json.RawMessage `json:"id"`
	Error string          `json:"error"`
}

type stored struct {
	Type        string   `json:"type"`
	BlockHashes []string `json:"block_hashes"`
	Parent      string   `json:"parent_block_hash,omitempty"`
	TokenIDs    []uint32 `json:"token_ids"`
	BlockSize   int      `json:"block_size"`
}

type removed struct {
	Type        string   `json:"type"`
	BlockHashes []string `json:"block_hashes"`
}

type cleared struct {
	Type string `json:"type"`
}

func main() {
	say(hello{
		Protocol: 1,
		Name:     "aibrix",
		Version:  version,
		Language: "Go",
		Dialects: []string{"slot6-b2", "slot6", "slot7", "slot8-lora", "slot9", "slot10", "slot12"},
		Decoder:  "kvcache.DecodeEventBatch",
		Homepage: "https://github.com/vllm-project/aibrix",
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
		batch, err := kvcache.DecodeEventBatch(asked.Payload, "", "")
		if err != nil {
			say(refusal{ID: asked.ID, Error: err.Error()})
			continue
		}
		events := make([]any, len(batch.Events))
		for i, event := range batch.Events {
			events[i] = neutral(event)
		}
		seconds := float64(batch.Timestamp.Unix()) + float64(batch.Timestamp.Nanosecond())/1e9
		say(answer{ID: asked.ID, Events: events, TS: seconds})
	}
}

func say(value any) {
	if err := json.NewEncoder(os.Stdout).Encode(value); err != nil {
		log.Fatal(err)
	}
}

func neutral(event kvcache.KVEvent) any {
	switch event := event.(type) {
	case *kvcache.BlockStoredEvent:
		found := stored{Type: string(event.Type), BlockHashes: hexes(event.BlockHashes), TokenIDs: []uint32{}}
		if event.ParentBlockHash != nil {
			found.Parent = hex(*event.ParentBlockHash)
		}
		for _, group := range event.TokenIDs {
			for at := 0; at < len(group); at += 4 {
				found.TokenIDs = append(found.TokenIDs, binary.BigEndian.Uint32(group[at:]))
			}
		}
		if len(event.TokenIDs) > 0 {
			found.BlockSize = len(event.TokenIDs[0]) / 4
		}
		return found
	case *kvcache.BlockRemovedEvent:
		return removed{Type: string(event.Type), BlockHashes: hexes(event.BlockHashes)}
	default:
		return cleared{Type: string(event.GetType())}
	}
}

func hexes(hashes []int64) []string {
	found := make([]string, len(hashes))
	for i, hash := range hashes {
		found[i] = hex(hash)
	}
	return found
}

func hex(hash int64) string {
	return fmt.Sprintf("%016x", uint64(hash))
}
