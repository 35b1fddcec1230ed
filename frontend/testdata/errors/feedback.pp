cell Net {
    param table: f32[8, 4] = normal(1)
    construct(token) {
        scores = gather(table, token)
        next = argmax(scores)
        return next, scores
    }
}
infer a { network = Net(); input token: i32[4]; feedback = { token: net } } // want `E0201: the block has no result "net"; did you mean "next"`
-----
cell Net {
    param table: f32[8, 4] = normal(1)
    construct(token) {
        scores = gather(table, token)
        next = argmax(scores)
        return next, scores
    }
}
infer b { network = Net(); input token: i32[4]; feedback = { tokens: next } } // want `E0201: the block has no input "tokens"; did you mean "token"`
-----
cell Net {
    param table: f32[8, 4] = normal(1)
    construct(token) {
        scores = gather(table, token)
        next = argmax(scores)
        return next, scores
    }
}
infer c { network = Net(); input token: i32[4]; feedback = { token: scores } } // want `E0401: the result .scores. is f32\[4,4\]; the input .token. of a micro-batch is i32\[4\]`
-----
cell Net {
    param table: f32[8, 4] = normal(1)
    construct(token) {
        scores = gather(table, token)
        next = argmax(scores)
        return next, scores
    }
}
infer d { network = Net(); input token: i32[4, 2]; feedback = { token: next } } // want `E0401: the input .token. is i32\[4,2\]; with .feedback. it has one token for each request: i32\[rows\]`
-----
cell Net {
    param table: f32[8, 4] = normal(1)
    construct(token) {
        scores = gather(table, token)
        next = argmax(scores)
        return next, scores
    }
}
infer e { network = Net(); input token: i32[4]; feedback = next } // want `E0603: .feedback. is a map from the input to the result`
-----
cell Net {
    param table: f32[8, 4] = normal(1)
    construct(token) {
        scores = gather(table, token)
        next = argmax(scores)
        return next, scores
    }
}
infer f { network = Net(); input token: i32[4]; feedback = { passes: 3 } } // want `E0603: .feedback. names no input`
-----
cell Net {
    param table: f32[8, 4] = normal(1)
    construct(token) {
        scores = gather(table, token)
        next = argmax(scores)
        return next, scores
    }
}
infer g { network = Net(); input token: i32[4]; feedback = { token: next, passes: 0 } } // want `E0603: a request makes at least one pass, not 0`
-----
cell Net {
    param table: f32[8, 4] = normal(1)
    construct(token) {
        scores = gather(table, token)
        next = argmax(scores)
        return next, scores
    }
}
infer h { network = Net(); input token: i32[4]; feedback = { token: next, scores: scores } } // want `E0603: one input is fed back, not two`
-----
cell Net {
    param table: f32[8, 4] = normal(1)
    construct(token) {
        scores = gather(table, token)
        next = argmax(scores)
        return next, scores
    }
}
infer i { network = Net(); input token: i32[4]; feedback = { token: next }; output_broadcast = true } // want `E0603: a block with .feedback. has no .output_broadcast.`
-----
cell Net {
    param table: f32[8, 4] = normal(1)
    construct(token) {
        scores = gather(table, token)
        next = argmax(scores)
        return next, scores
    }
}
infer j { network = Net(); input token: i32[4]; feedback = { token: next }; dataset = npz("x.npz") | batch(4) } // want `E0603: a block with .feedback. has no .dataset.: its prompts come from -input`
-----
cell Net {
    param table: f32[8, 4] = normal(1)
    construct(token) {
        scores = gather(table, token)
        next = argmax(scores)
        return next, scores
    }
}
infer k { network = Net(); input token: i32[4]; feedback = { token: argmax(next) } } // want `E0603: .feedback. names an input and a result`
-----
cell Net {
    param table: f32[8, 4] = normal(1)
    construct(token) {
        scores = gather(table, token)
        next = argmax(scores)
        return next, scores
    }
}
eval l { network = Net(); input token: i32[4]; feedback = { token: next } } // want `E0601: the entry .feedback. belongs in an infer block`
-----
cell Net {
    construct(token, other) {
        return token, other
    }
}
infer a { network = Net(); input token: i32[4]; input more: i32[4]; feedback = { token: other } } // want `E0603: a block with .feedback. has one input, the one that is fed back; .more. is another; make it a parameter`
-----
cell One { construct(token) { return token } }
infer b { network = One(); input token: i32[4]; feedback = { token: token } } // want `E0603: the result .token. is the input itself`
