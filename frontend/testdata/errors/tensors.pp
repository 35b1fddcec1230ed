cell Net {
    a = Dense(3, 4)
    b = Dense(5, 6)
    param w: f32[7, 8] = ones()
    construct(x) {
        y = b(a(x)) // want `E0402: .matmul.: inner dimensions 4 and 5 differ`
        z = matmul(x, w) // want `E0402: .matmul.: inner dimensions 3 and 7 differ`
        return y, z
    }
}
infer a { network = Net(); input x: f32[2, 3] }
-----
cell Net {
    construct(x) {
        if sum(x) > 0 { x = relu(x) } // want `E0309: a condition cannot depend on tensor values; choose element by element with where`
        y = not (x == x) // want `E0309: .not. works on compile-time conditions`
        z = x @ x // want `E0105: unknown mark @x; a matrix product is written matmul.x, w.`
        relu(x) // want `E0308: the result is dropped: a tensor f32.2,3.`
        return x
    }
}
infer a { network = Net(); input x: f32[2, 3] }
-----
cell Net {
    a = ReLU()
    construct(x) {
        b = Dense(3, 4) // want `E0307: a cell is made in the member list, not inside a construct`
        a = x // want `E0203: "a" is a member and cannot be assigned in a construct`
        for i in 0..2 { i = 3 } // want `E0203: "i" is a loop variable and cannot be assigned`
        c = x(x) // want `E0307: a tensor f32.2,3. cannot be called`
        d = a.weight // want `E0204: the cell ReLU has no member "weight"`
        e = x.shap // want `E0204: a tensor f32.2,3. has no "shap"; a tensor has shape and dtype`
        p, q = x // want `E0303: 2 names for a tensor`
        f = print(x) // want `E0308: the call has no result to assign`
        print("only text") // want `E0303: .print. takes a tensor`
        return x
        x = x // want `E0312: nothing may follow a return`
    }
}
infer a { network = Net(); input x: f32[2, 3] }
-----
cell Net {
    construct(x) {
        a = x[0, 0, 0] // want `E0306: 3 indices for a tensor f32.2,3.`
        b = x[5] // want `E0306: the index is outside axis 0`
        c = x[1..9] // want `E0306: the slice 1..9 does not fit a length of 2`
        d = [1, 2][2] // want `E0306: index 2 is outside a sequence of 2`
        e = 1 / 0 // want `E0305: division by zero`
        f = sqrt(-1) // want `E0305: sqrt.-1. has no value`
        g = reshape(x, [4, 4]) // want `E0402: .reshape.: cannot reshape`
        h = x + cast(x, i32) // want `E0402: .add.: element types f32 and i32 differ`
        i = "a" * 2 // want `E0303: .\*. does not work on a string and the number 2`
        j = x % x // want `E0314: .%. is not an op on tensors`
        k = concat([x, x], axis = 3) // want `E0306: the axis is outside a tensor with 2 axes`
        l = for_each(x) // want `E0201: unknown name "for_each"`
        m = x if 3 else x // want `E0303: a condition is true or false, not the number 3`
        n = pow(pow(10, 1000), 1000) // want `E0305: the number has more than 4096 bits`
        return x
    }
}
infer a { network = Net(); input x: f32[2, 3] }
-----
cell Inner {
    construct(x: f32[2, 4], n: int) { return x }
}
cell Net {
    inner = Inner()
    construct(x) {
        a = inner(x, 3) // want `E0401: the argument .x. of Inner is a tensor f32.2,4., not f32.2,3.`
        b = inner(x) // want `E0302: the construct of Inner needs its argument .n.`
        return x
    }
}
infer a { network = Net(); input x: f32[2, 3] }
-----
cell Net(start: int = training) { // want `E0105: .training. is known inside a construct only`
    construct(x) { return x }
}
infer a { network = Net(); input x: f32[2, 3] }
