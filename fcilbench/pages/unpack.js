// Reads what `packed` of pack.py wrote: gzip, in letters of base 85 that mean nothing to HTML.

const LETTERS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%/()*+-;,=.?@^_`{|}~";

export async function unpack(text) {
  const values = new Uint8Array(128);
  for (let i = 0; i < 85; i++) values[LETTERS.charCodeAt(i)] = i;
  const lack = (5 - text.length % 5) % 5, bytes = new Uint8Array((text.length + lack) / 5 * 4);
  for (let i = 0, at = 0; i < text.length; i += 5) {
    let number = 0;
    for (let j = i; j < i + 5; j++) number = 85 * number + (j < text.length ? values[text.charCodeAt(j)] : 84);
    for (let shift = 24; shift >= 0; shift -= 8) bytes[at++] = number >>> shift;
  }
  const stream = new Blob([bytes.subarray(0, bytes.length - lack)]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).text();
}
