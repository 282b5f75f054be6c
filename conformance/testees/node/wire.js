// Where the values of a payload begin and end, without reading them.

const MAX_NESTING = 100;

const SIZES = {
  0xcc: 1, 0xcd: 2, 0xce: 4, 0xcf: 8, 0xd0: 1, 0xd1: 2, 0xd2: 4, 0xd3: 8, 0xca: 4, 0xcb: 8,
  0xd4: 2, 0xd5: 3, 0xd6: 5, 0xd7: 9, 0xd8: 17,
};
const LENGTH_WIDTHS = {
  0xd9: 1, 0xda: 2, 0xdb: 4, 0xc4: 1, 0xc5: 2, 0xc6: 4, 0xc7: 1, 0xc8: 2, 0xc9: 4,
  0xdc: 2, 0xdd: 4, 0xde: 2, 0xdf: 4,
};

/** The type that a first byte announces. */
export function kindOf(bytes) {
  const code = bytes[0];
  if (code < 0x80 || code >= 0xe0 || (code >= 0xcc && code <= 0xd3)) return "int";
  if (code < 0x90 || code === 0xde || code === 0xdf) return "map";
  if (code < 0xa0 || code === 0xdc || code === 0xdd) return "array";
  if (code < 0xc0 || (code >= 0xd9 && code <= 0xdb)) return "str";
  if (code === 0xc0) return "nil";
  if (code === 0xc2 || code === 0xc3) return "bool";
  if (code >= 0xc4 && code <= 0xc6) return "bin";
  if (code === 0xca || code === 0xcb) return "float";
  if (code === 0xc1) throw new Error("the reserved byte c1");
  return "ext";
}

/** The length or count in a header, and where what it counts begins. */
function header(bytes) {
  const code = bytes[0];
  const width = LENGTH_WIDTHS[code];
  if (width === undefined) return { count: code < 0xa0 ? code & 0x0f : code & 0x1f, start: 1 };
  if (bytes.length <= width) throw new Error("the payload ends inside a header");
  const view = Buffer.from(bytes.buffer, bytes.byteOffset, bytes.length);
  return { count: view.readUIntBE(1, width), start: 1 + width };
}

/** How many bytes the first value takes. */
function sizeOf(bytes, depth = MAX_NESTING) {
  if (bytes.length === 0) throw new Error("the payload ends inside a value");
  const kind = kindOf(bytes);
  let size;
  if (kind === "array" || kind === "map") {
    if (depth === 0) throw new Error("values are nested too deep");
    const { count, start } = header(bytes);
    size = start;
    for (let left = kind === "map" ? 2 * count : count; left > 0; left--) size += sizeOf(bytes.subarray(size), depth - 1);
  } else if (kind === "str" || kind === "bin" || (kind === "ext" && bytes[0] <= 0xc9)) {
    const { count, start } = header(bytes);
    size = start + count + (kind === "ext" ? 1 : 0);
  } else {
    size = 1 + (SIZES[bytes[0]] ?? 0);
  }
  if (size > bytes.length) throw new Error("the payload ends inside a value");
  return size;
}

/** The bytes, if they are one value and nothing else. */
export function whole(bytes) {
  const rest = bytes.length - sizeOf(bytes);
  if (rest > 0) throw new Error(`${rest} bytes follow the value`);
  return bytes;
}

/** The elements of an array, or the keys and values of a map in turn, each as its bytes. */
export function partsOf(bytes) {
  const { count, start } = header(bytes);
  const found = [];
  let at = start;
  for (let left = kindOf(bytes) === "map" ? 2 * count : count; left > 0; left--) {
    const size = sizeOf(bytes.subarray(at));
    found.push(bytes.subarray(at, at + size));
    at += size;
  }
  return found;
}

/** The content of a str or bin. */
export function contentOf(bytes) {
  return bytes.subarray(header(bytes).start);
}
