// Package tokens counts the tokens of a REQUEST before it is sent upstream, and of an answer while it streams, offline. The upstream's own figures
// win wherever it gives any; these counts decide what is reserved, and what is billed where there are none.
//
// # Encodings
//
// Vocabularies are compiled in (github.com/tiktoken-go/tokenizer): o200k_base, cl100k_base, p50k_base, r50k_base. Which one a model has is
// configuration (ParseEncodings); models of other families are counted by the default one, which is close for most of them.
//
// # What is counted
//
//   - chat: every message 3 tokens, its role and text as text, a name as text and 1, and 3 for the beginning of the answer. Tool calls: 3 each,
//     and every string in them. Tools and functions: 8 each, and their compact JSON as text; response_format likewise, without the 8. Every other
//     string in a message or a part counts as text. What is given twice counts twice.
//   - images: 85 at detail low; else 85, and 170 for each tile of 512 pixels after fitting into 2,048 pixels and shrinking the shorter side to
//     768, as OpenAI documents it. The size is read from the first bytes of a data URL (PNG, JPEG, GIF), of the first 64 images; else, and of a URL,
//     1,024 × 1,024 is assumed: 765.
//   - audio: 1 for each 3,200 bytes of WAV or PCM, for each 400 bytes of any other format. Files and other data URLs: 1 for each 16 bytes; a file
//     by its id, 2,000. These are guesses of Tollgate's. Base64 in them is never counted as text.
//   - completions and embeddings: text as text; arrays of token ids by their number; suffix as text.
//
// n and best_of multiply the answers, not the input: body.Request.Choices of each of Counted.Prompts.
//
// # Cost
//
// Texts of up to ExactBytes in all are counted exactly. Beyond, a sample of SampleBytes is, spread over all of it at places that no client can
// foresee, and the rest is extrapolated by a cheap measure of its shape, plus Margin. TestEstimateIsWithinItsBound states how far off that is. Time is
// linear in the body's size for every input, one letter a million times included.
package tokens
