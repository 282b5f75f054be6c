package main

import (
	"errors"
	"fmt"
	"math"
	"strings"
)

const saltPrefix = "dynamo-cache-salt:"

// event is one event in the neutral JSON form.
type event map[string]any

type batch struct {
	ts     *float64
	rank   any
	events []event
	// faults are what could not be read; a router would count and log them.
	faults []string
}

// read turns a value into its JSON form. All but those of required fields are called only for values that are not nil.
type read func(raw) (any, error)

type field struct {
	name string
	read read
}

var (
	hashes     = field{"block_hashes", arrayOf(blockHash)}
	parent     = field{"parent_block_hash", blockHash}
	tokens     = field{"token_ids", arrayOf(token)}
	blockSize  = field{"block_size", integer}
	loraID     = field{"lora_id", integer}
	medium     = field{"medium", text}
	loraName   = field{"lora_name", text}
	extraKeys  = field{"extra_keys", arrayOf(orNil(arrayOf(extraKey)))}
	group      = field{"group_idx", integer}
	specKind   = field{"kv_cache_spec_kind", text}
	specWindow = field{"kv_cache_spec_sliding_window", integer}
	locality   = field{"locality", text}
	ownership  = field{"ownership", text}
	metadata   = field{"metadata", nil}
	salt       = field{"cache_salt", text}
	session    = field{"session_id", text}
	lookahead  = field{"lookahead_token_ids", arrayOf(arrayOf(integer))}
)

// layout is what the slots (from 1 on) and the keys of one tag's events hold.
type layout struct {
	slots    []field
	keys     []field
	required []string
}

var layouts = map[string]layout{
	"BlockStored": {
		slots: []field{
			hashes, parent, tokens, blockSize, loraID, medium, loraName, extraKeys, group, specKind, specWindow, locality, ownership,
			metadata,
		},
		keys: []field{
			hashes, parent, tokens, blockSize, loraID, medium, loraName, extraKeys, group, specKind, specWindow, locality, ownership,
			salt, session, lookahead,
		},
		required: []string{"block_hashes", "token_ids", "block_size"},
	},
	"BlockRemoved": {
		slots:    []field{hashes, medium, group, specKind, specWindow, locality, ownership},
		keys:     []field{hashes, medium, group, specKind, specWindow, locality, ownership},
		required: []string{"block_hashes"},
	},
	"AllBlocksCleared": {slots: []field{ownership}, keys: []field{ownership}},
}

var media = map[any]bool{
	"GPU": true, "CPU_PINNED": true, "DISK": true, "EXTERNAL": true, "CPU": true, "STORAGE": true, "FS": true, "OBJ": true,
}

// readBatch reads one payload. It fails only where not even the list of events can be reached.
func readBatch(payload []byte) (*batch, error) {
	whole, err := single(payload)
	if err != nil {
		return nil, err
	}
	parts, err := whole.elements()
	if err != nil {
		return nil, fmt.Errorf("the batch: %w", err)
	}
	if len(parts) < 2 {
		return nil, errors.New("a batch has ts and events")
	}
	events, err := parts[1].elements()
	if err != nil {
		return nil, fmt.Errorf("the events: %w", err)
	}
	if len(events) > 4096 && len(events)*8 > len(parts[1]) {
		return nil, errors.New("far more events than bytes to hold them")
	}
	found := &batch{events: []event{}}
	for index, value := range events {
		read, err := readEvent(value)
		if err != nil {
			found.faults = append(found.faults, fmt.Sprintf("events[%d]: %v", index, err))
		} else if read != nil {
			found.events = append(found.events, read)
		}
	}
	if ts, err := number(parts[0]); err != nil || math.IsNaN(ts) || math.IsInf(ts, 0) {
		found.faults = append(found.faults, "ts is not a finite number")
	} else {
		found.ts = &ts
	}
	if len(parts) > 2 {
		if found.rank, err = orNil(integer)(parts[2]); err != nil {
			found.faults = append(found.faults, fmt.Sprintf("dp_rank: %v", err))
		}
	}
	return found, nil
}

// readEvent reads one event; it is nil for a tag that is not known.
func readEvent(value raw) (event, error) {
	if value.kind() == kindBin {
		// Some producers encode each event by itself and put the bytes into the batch.
		inner, err := value.bytes()
		if err != nil {
			return nil, err
		}
		if value, err = single(inner); err != nil {
			return nil, err
		}
	}
	switch value.kind() {
	case kindArray:
		return readArray(value)
	case kindMap:
		return readMap(value)
	}
	return nil, fmt.Errorf("an event is an array or a map, not %s", value.kind())
}

func readArray(value raw) (event, error) {
	slots, err := value.elements()
	if err != nil {
		return nil, err
	}
	if len(slots) == 0 {
		return nil, errors.New("an event has a tag")
	}
	tag, err := slots[0].text()
	if err != nil {
		return nil, fmt.Errorf("the tag: %w", err)
	}
	known, ok := layouts[tag]
	if !ok {
		return nil, nil
	}
	fields := known.slots[:knownSlots(tag, slots)]
	found := event{"type": tag}
	salts := map[string]bool{}
	for at, slot := range slots[1:] {
		if at >= len(fields) {
			// Passing over a salt would make a tenant's own blocks anybody's.
			if slot.kind() == kindMap && slot.hasSalt() {
				return nil, fmt.Errorf("a salt in slot %d, which holds none", at+1)
			}
			continue
		}
		if fields[at].name == "metadata" || (fields[at].name == "lora_name" && slot.kind() == kindMap) {
			err = readMetadata(slot, salts)
		} else {
			err = found.set(fields[at], slot)
		}
		if err != nil {
			return nil, fmt.Errorf("slot %d: %w", at+1, err)
		}
	}
	return found.complete(known, salts)
}

// knownSlots counts the slots with a meaning: in lengths that no dialect has, the doubtful ones only where their type fits.
func knownSlots(tag string, slots []raw) int {
	all, length := layouts[tag].slots, len(slots)
	from, to := 1, 1
	switch {
	case tag == "BlockStored" && length == 13:
		from, to = 12, 13
	case tag == "BlockRemoved" && length < 8:
		from, to = 4, length
	case tag == "AllBlocksCleared" && length > 1:
		from, to = 1, 2
	}
	for at := from; at < to; at++ {
		value, err := orNil(all[at-1].read)(slots[at])
		// ATOM clears with a medium where Dynamo has the owner.
		if err != nil || (tag == "AllBlocksCleared" && media[value]) {
			return at - 1
		}
	}
	if length-1 < len(all) {
		return length - 1
	}
	return len(all)
}

func readMetadata(value raw, salts map[string]bool) error {
	if value.kind() == kindNil {
		return nil
	}
	pairs, err := value.pairs()
	if err != nil {
		return err
	}
	salt, there := pairs["cache_salt"]
	if !there || salt.kind() == kindNil {
		return nil
	}
	found, err := salt.text()
	salts[found] = true
	return err
}

func readMap(value raw) (event, error) {
	pairs, err := value.pairs()
	if err != nil {
		return nil, err
	}
	named, ok := pairs["type"]
	if !ok {
		return nil, errors.New("an event has a type")
	}
	tag, err := named.text()
	if err != nil {
		return nil, fmt.Errorf("the tag: %w", err)
	}
	known, ok := layouts[tag]
	if !ok {
		return nil, nil
	}
	found := event{"type": tag}
	for _, field := range known.keys {
		if value, there := pairs[field.name]; there {
			if err := found.set(field, value); err != nil {
				return nil, err
			}
		}
	}
	salts := map[string]bool{}
	if told, there := found["cache_salt"]; there {
		salts[told.(string)] = true
	}
	return found.complete(known, salts)
}

// set reads a field into the event. A nil is left out, but where there must be something.
func (e event) set(f field, value raw) (err error) {
	if value.kind() == kindNil {
		switch f.name {
		case "block_hashes":
			return errors.New("block_hashes is nil")
		case "token_ids":
			e[f.name] = []any{}
		case "block_size":
			e[f.name] = 0
		}
		return nil
	}
	if e[f.name], err = f.read(value); err != nil {
		return fmt.Errorf("%s: %w", f.name, err)
	}
	return nil
}

// complete checks that nothing is missing, and adds the salt, which may stand in several places.
func (e event) complete(known layout, salts map[string]bool) (event, error) {
	for _, name := range known.required {
		if _, there := e[name]; !there {
			return nil, fmt.Errorf("the event has no %s", name)
		}
	}
	entries, _ := e["extra_keys"].([]any)
	for _, entry := range entries {
		keys, _ := entry.([]any)
		for _, key := range keys {
			if words, ok := key.(string); ok && strings.HasPrefix(words, saltPrefix) {
				salts[strings.TrimPrefix(words, saltPrefix)] = true
			}
		}
	}
	if len(salts) > 1 {
		return nil, errors.New("two salts in one event")
	}
	for salt := range salts {
		e["cache_salt"] = salt
	}
	return e, nil
}
