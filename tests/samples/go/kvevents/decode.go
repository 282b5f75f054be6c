// Package kvevents is the project's own decoder of KV-cache events: SGLang's, as they are since 0.5.9.
package kvevents

import (
	"errors"
	"fmt"

	"github.com/vmihailenco/msgpack/v5"
)

// Event is one event of any kind; Tag says which. Hashes are the 64 bits, whichever sign they have on the wire.
type Event struct {
	Tag       string
	Hashes    []uint64
	Parent    *uint64
	Tokens    []int64
	BlockSize int64
	LoraID    *int64
	Medium    string
	Salt      *string
}

// Batch is what one message carries.
type Batch struct {
	TS     float64
	Events []Event
	Rank   *int64
}

// Decode reads one payload.
func Decode(payload []byte) (*Batch, error) {
	var parts []any
	if err := msgpack.Unmarshal(payload, &parts); err != nil {
		return nil, err
	}
	if len(parts) != 3 {
		return nil, fmt.Errorf("a batch has 3 elements, not %d", len(parts))
	}
	ts, isTime := parts[0].(float64)
	events, isArray := parts[1].([]any)
	if !isTime || !isArray {
		return nil, errors.New("a batch is a time and events")
	}
	batch := &Batch{TS: ts, Events: []Event{}, Rank: optional(parts[2])}
	for index, value := range events {
		event, err := decodeEvent(value)
		if err != nil {
			return nil, fmt.Errorf("event %d: %w", index, err)
		}
		batch.Events = append(batch.Events, event)
	}
	return batch, nil
}

func decodeEvent(value any) (event Event, err error) {
	slots, ok := value.([]any)
	if !ok || len(slots) == 0 {
		return event, errors.New("an event is an array of slots")
	}
	event.Tag, _ = slots[0].(string)
	switch {
	case event.Tag == "BlockStored" && len(slots) >= 7:
		if event.Hashes, err = hashes(slots[1]); err != nil {
			return event, err
		}
		if parent := optional(slots[2]); parent != nil {
			hash := uint64(*parent)
			event.Parent = &hash
		}
		if event.Tokens, err = integers(slots[3]); err != nil {
			return event, err
		}
		if size := optional(slots[4]); size != nil {
			event.BlockSize = *size
		}
		event.LoraID = optional(slots[5])
		event.Medium, _ = slots[6].(string)
		if len(slots) > 7 {
			metadata, _ := slots[7].(map[string]any)
			if salt, ok := metadata["cache_salt"].(string); ok {
				event.Salt = &salt
			}
		}
	case event.Tag == "BlockRemoved" && len(slots) >= 3:
		event.Hashes, err = hashes(slots[1])
		event.Medium, _ = slots[2].(string)
	case event.Tag == "AllBlocksCleared":
	default:
		err = fmt.Errorf("%q with %d slots", event.Tag, len(slots))
	}
	return event, err
}

func hashes(value any) ([]uint64, error) {
	signed, err := integers(value)
	found := make([]uint64, len(signed))
	for index, number := range signed {
		found[index] = uint64(number)
	}
	return found, err
}

func integers(value any) ([]int64, error) {
	values, ok := value.([]any)
	if !ok {
		return nil, fmt.Errorf("an array of integers is no %T", value)
	}
	found := make([]int64, len(values))
	for index, each := range values {
		number := optional(each)
		if number == nil {
			return nil, fmt.Errorf("an integer is no %T", each)
		}
		found[index] = *number
	}
	return found, nil
}

// optional is the integer in any of the widths that msgpack has; nil for anything else.
func optional(value any) *int64 {
	var found int64
	switch number := value.(type) {
	case int8:
		found = int64(number)
	case int16:
		found = int64(number)
	case int32:
		found = int64(number)
	case int64:
		found = number
	case uint8:
		found = int64(number)
	case uint16:
		found = int64(number)
	case uint32:
		found = int64(number)
	case uint64:
		found = int64(number)
	default:
		return nil
	}
	return &found
}
