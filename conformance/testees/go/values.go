package main

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"unicode/utf8"

	"github.com/vmihailenco/msgpack/v5"
	"github.com/vmihailenco/msgpack/v5/msgpcode"
)

// maxDepth is how deep the values of one extra key may be nested; an identifier with its offset is one deep.
const maxDepth = 4

// maxNesting is how deep a whole payload may be nested, what is passed over included.
const maxNesting = 100

// maxSafe is the largest integer that every JSON reader keeps.
const maxSafe = 1<<53 - 1

type kind string

const (
	kindNil   kind = "nil"
	kindBool  kind = "a bool"
	kindInt   kind = "an int"
	kindFloat kind = "a float"
	kindStr   kind = "a str"
	kindBin   kind = "a bin"
	kindArray kind = "an array"
	kindMap   kind = "a map"
	kindExt   kind = "an extension type"
)

// raw is one msgpack value that is known to be whole.
type raw []byte

// single is the one value that the bytes are.
func single(data []byte) (raw, error) {
	reader := bytes.NewReader(data)
	if err := skip(msgpack.NewDecoder(reader), maxNesting); err != nil {
		return nil, err
	}
	if reader.Len() > 0 {
		return nil, fmt.Errorf("%d bytes follow the value", reader.Len())
	}
	return raw(data), nil
}

// skip passes over a value. The package's own Skip recurses as deep as the sender likes, and Go cannot recover from a stack
// that overflows.
func skip(decoder *msgpack.Decoder, depth int) error {
	code, err := decoder.PeekCode()
	if err != nil {
		return err
	}
	count := 0
	switch (raw{code}).kind() {
	case kindArray:
		count, err = decoder.DecodeArrayLen()
	case kindMap:
		count, err = decoder.DecodeMapLen()
		count *= 2
	default:
		return decoder.Skip()
	}
	if depth == 0 {
		return errors.New("values are nested too deep")
	}
	for ; count > 0 && err == nil; count-- {
		err = skip(decoder, depth-1)
	}
	return err
}

func (r raw) decoder() *msgpack.Decoder {
	return msgpack.NewDecoder(bytes.NewReader(r))
}

func (r raw) kind() kind {
	code := r[0]
	switch {
	case code == msgpcode.Nil:
		return kindNil
	case code == msgpcode.True || code == msgpcode.False:
		return kindBool
	case msgpcode.IsFixedNum(code) || code >= msgpcode.Uint8 && code <= msgpcode.Int64:
		return kindInt
	case code == msgpcode.Float || code == msgpcode.Double:
		return kindFloat
	case msgpcode.IsString(code):
		return kindStr
	case msgpcode.IsBin(code):
		return kindBin
	case msgpcode.IsFixedArray(code) || code == msgpcode.Array16 || code == msgpcode.Array32:
		return kindArray
	case msgpcode.IsFixedMap(code) || code == msgpcode.Map16 || code == msgpcode.Map32:
		return kindMap
	}
	return kindExt
}

func (r raw) expect(wanted kind) error {
	if r.kind() != wanted {
		return fmt.Errorf("expected %s, got %s", wanted, r.kind())
	}
	return nil
}

func (r raw) elements() ([]raw, error) {
	if err := r.expect(kindArray); err != nil {
		return nil, err
	}
	decoder := r.decoder()
	count, err := decoder.DecodeArrayLen()
	if err != nil {
		return nil, err
	}
	return values(decoder, count)
}

// flat is a map's keys and values in turn, as they stand on the wire.
func (r raw) flat() ([]raw, error) {
	if err := r.expect(kindMap); err != nil {
		return nil, err
	}
	decoder := r.decoder()
	count, err := decoder.DecodeMapLen()
	if err != nil {
		return nil, err
	}
	return values(decoder, 2*count)
}

func values(decoder *msgpack.Decoder, count int) ([]raw, error) {
	found := make([]raw, count)
	for at := range found {
		value, err := decoder.DecodeRaw()
		if err != nil {
			return nil, err
		}
		found[at] = raw(value)
	}
	return found, nil
}

// pairs is a map by its keys; those that are no strings have a name that no field has. Two equal keys are refused: decoders
// disagree on which of them counts.
func (r raw) pairs() (map[string]raw, error) {
	flat, err := r.flat()
	if err != nil {
		return nil, err
	}
	found := make(map[string]raw, len(flat)/2)
	for at := 0; at < len(flat); at += 2 {
		key := "\x00" + string(flat[at])
		if flat[at].kind() == kindStr {
			if key, err = flat[at].text(); err != nil {
				return nil, fmt.Errorf("a key: %w", err)
			}
		}
		if _, there := found[key]; there {
			return nil, fmt.Errorf("the key %q stands twice", key)
		}
		found[key] = flat[at+1]
	}
	return found, nil
}

// hasSalt tells of a map whether it has a cache_salt that is a string.
func (r raw) hasSalt() bool {
	flat, _ := r.flat()
	for at := 0; at < len(flat); at += 2 {
		if key, err := flat[at].text(); err == nil && key == "cache_salt" && flat[at+1].kind() == kindStr {
			return true
		}
	}
	return false
}

func (r raw) text() (string, error) {
	if err := r.expect(kindStr); err != nil {
		return "", err
	}
	found, err := r.decoder().DecodeString()
	if err == nil && !utf8.ValidString(found) {
		err = errors.New("a str that is not UTF-8")
	}
	return found, err
}

func (r raw) bytes() ([]byte, error) {
	if err := r.expect(kindBin); err != nil {
		return nil, err
	}
	return r.decoder().DecodeBytes()
}

// bits is the 64 bits of an int, and whether they are of a number below 0.
func (r raw) bits() (bits uint64, negative bool, err error) {
	if err := r.expect(kindInt); err != nil {
		return 0, false, err
	}
	if r[0] == msgpcode.Uint64 {
		bits, err = r.decoder().DecodeUint64()
		return bits, false, err
	}
	value, err := r.decoder().DecodeInt64()
	return uint64(value), value < 0, err
}

func number(r raw) (float64, error) {
	if r.kind() == kindFloat {
		return r.decoder().DecodeFloat64()
	}
	bits, negative, err := r.bits()
	if negative {
		return float64(int64(bits)), err
	}
	return float64(bits), err
}

func text(r raw) (any, error) {
	return r.text()
}

func integer(r raw) (any, error) {
	bits, negative, err := r.bits()
	switch {
	case err != nil:
		return nil, err
	case negative && int64(bits) < -maxSafe:
		return map[string]string{"int": strconv.FormatInt(int64(bits), 10)}, nil
	case negative:
		return int64(bits), nil
	case bits > maxSafe:
		return map[string]string{"int": strconv.FormatUint(bits, 10)}, nil
	}
	return bits, nil
}

// blockHash takes signed and unsigned integers of the same 64 bits for one hash.
func blockHash(r raw) (any, error) {
	if r.kind() == kindBin {
		digest, err := r.bytes()
		return "bytes:" + hex.EncodeToString(digest), err
	}
	bits, _, err := r.bits()
	return fmt.Sprintf("%016x", bits), err
}

// token is an id, or a pair of them on EAGLE's pages, or a string from TensorRT-LLM.
func token(r raw) (any, error) {
	switch r.kind() {
	case kindStr:
		return r.text()
	case kindArray:
		pair, err := arrayOf(integer)(r)
		if parts, _ := pair.([]any); err == nil && len(parts) != 2 {
			err = errors.New("a token is an int or a pair of ints")
		}
		return pair, err
	}
	return integer(r)
}

func extraKey(r raw) (any, error) {
	return anyKey(r, maxDepth)
}

func anyKey(r raw, depth int) (any, error) {
	deeper := func(inner raw) (any, error) { return anyKey(inner, depth-1) }
	switch r.kind() {
	case kindNil:
		return nil, nil
	case kindBool:
		return r.decoder().DecodeBool()
	case kindInt:
		return integer(r)
	case kindFloat:
		value, err := r.decoder().DecodeFloat64()
		return map[string]string{"float": strconv.FormatFloat(value, 'g', -1, 64)}, err
	case kindStr:
		return r.text()
	case kindBin:
		value, err := r.bytes()
		return map[string]string{"bytes": hex.EncodeToString(value)}, err
	case kindArray:
		if depth > 0 {
			return arrayOf(deeper)(r)
		}
	case kindMap:
		if depth > 0 {
			return mapKey(r, deeper)
		}
	}
	return nil, fmt.Errorf("an extra key holds %s, or is nested too deep", r.kind())
}

func mapKey(r raw, deeper read) (any, error) {
	flat, err := r.flat()
	if err != nil {
		return nil, err
	}
	pairs := [][2]any{}
	for at := 0; at < len(flat); at += 2 {
		key, err := deeper(flat[at])
		if err != nil {
			return nil, err
		}
		value, err := deeper(flat[at+1])
		if err != nil {
			return nil, err
		}
		pairs = append(pairs, [2]any{key, value})
	}
	return map[string]any{"map": pairs}, nil
}

func arrayOf(each read) read {
	return func(r raw) (any, error) {
		elements, err := r.elements()
		if err != nil {
			return nil, err
		}
		found := make([]any, len(elements))
		for at, element := range elements {
			if found[at], err = each(element); err != nil {
				return nil, fmt.Errorf("element %d: %w", at, err)
			}
		}
		return found, nil
	}
}

func orNil(inner read) read {
	return func(r raw) (any, error) {
		if r.kind() == kindNil {
			return nil, nil
		}
		return inner(r)
	}
}
