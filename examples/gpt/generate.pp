// generate.pp: the decoder of tiny.pp, one token per pass. Its parameters have
// the names of that file, so that what training saves is what it starts from:
//
//	ppc run examples/gpt/tiny.pp -save weights.npz
//	ppc run examples/gpt/generate.pp -init weights.npz -input prompts.npy -tokens 10 -output out.npy
//
// It compiles for any number of stages up to the number of layers (-stages); -devices has several ranks of a stage share the
// requests, and ppc launch makes each rank a process.
const vocab = 64
const context = 16
const dim = 32
const heads = 4
const layers = 4
const requests = 8 // under way at once
const rows = requests / micro_batch_num // of a micro-batch

// CachedAttention is CausalAttention for one token: it keeps the keys and values
// of those before. seen marks the positions up to this one, now this one only.
cell CachedAttention(heads: int) {
    size = dim / heads
    buffer keys: f32[rows, heads, context, size] = zeros()
    buffer values: f32[rows, heads, context, size] = zeros()
    construct(x, now, seen) {
        parts = []
        for part in split(x, 3, axis = -1) {
            parts = parts + [reshape(part, [rows, heads, 1, size])]
        }
        q, k, v = parts
        keys = where(now, k, keys)
        values = where(now, v, values)
        scores = matmul(q, keys, transpose_b = true) * (1 / sqrt(size))
        y = matmul(softmax(where(seen, scores, -inf)), values)
        return reshape(y, [rows, dim])
    }
}

@lazy_inline
cell Block {
    ln1  = LayerNorm(dim)
    qkv  = Dense(dim, 3 * dim)
    attn = CachedAttention(heads)
    proj = Dense(dim, dim)
    ln2  = LayerNorm(dim)
    fc1  = Dense(dim, 4 * dim)
    fc2  = Dense(4 * dim, dim)
    construct(x, now, seen) {
        x = x + proj(attn(qkv(ln1(x)), now, seen))
        return x + fc2(gelu(fc1(ln2(x))))
    }
}

cell GPT {
    param wte: f32[vocab, dim] = normal(0.02)
    param wpe: f32[context, dim] = normal(0.02)
    buffer position: i32[1] = constant(-1)
    for i in 0..layers {
        h[i] = Block() @stage(i * stages / layers)
    }
    lnf = LayerNorm(dim)
    construct(token) {
        position = position + 1
        x = gather(wte, token) + gather(wpe, position)
        // How many ones a row of a lower triangle has is its number, from 1.
        places = cast(sum(tril(ones([context, context])), axes = [1]), i32) - 1
        now = reshape(equal(places, position), [context, 1])
        seen = less_equal(places, position)
        for block in h {
            x = block(x, now, seen)
        }
        logits = matmul(lnf(x), wte, transpose_b = true)
        tokens = argmax(logits)
        return tokens, logits
    }
}

infer generate {
    network         = GPT()
    input token     : i32[requests]
    feedback        = { token: tokens, passes: context }
    stages          = 1
    micro_batch_num = 4
}
