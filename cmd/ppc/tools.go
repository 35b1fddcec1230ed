package main

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/urfave/cli/v3"

	"github.com/ppc-lang/ppc"
	"github.com/ppc-lang/ppc/data"
	"github.com/ppc-lang/ppc/diag"
	"github.com/ppc-lang/ppc/frontend"
	"github.com/ppc-lang/ppc/passes"
)

func (a *app) checkCommand() *cli.Command {
	return &cli.Command{
		Name: "check", Usage: "report what is wrong with a model", ArgsUsage: "FILE", Flags: compileFlags(),
		Action: func(ctx context.Context, c *cli.Command) error {
			name, err := file(c)
			if err != nil {
				return err
			}
			o, err := a.options(c, name, "none")
			if err != nil {
				return err
			}
			list := frontend.Check(name, o.Source, frontend.Options{
				Block: o.Block, Set: o.Set, Stages: o.Stages, Micro: o.Micro, Accumulate: o.Accumulate, Seed: o.Seed,
				Layout: o.Layout, Unsplit: o.Unsplit, Read: o.Read, Trees: o.Trees, Done: ctx.Done(),
			})
			if err := ctx.Err(); err != nil {
				return failed(err)
			}
			if list.HasErrors() {
				return wrong(list)
			}
			// What only the passes see: stages that go down, too many stages.
			blocks := frontend.Blocks(name, o.Source, o.Trees)
			if o.Block != "" || len(blocks) == 0 {
				blocks = []string{o.Block}
			}
			for _, o.Block = range blocks {
				r, err := ppc.Compile(ctx, o)
				switch {
				case err == nil:
					list = append(list, r.Warnings...)
				case ppc.Diagnostics(err)[0].Code != diag.BadBlock:
					return refused(err)
				}
			}
			a.show(list, false)
			if a.json {
				return a.printJSON(map[string]any{"diagnostics": append(diag.List{}, list.Sorted()...)})
			}
			fmt.Fprintf(a.out, "%s: ok\n", name)
			return nil
		},
	}
}

func (a *app) fmtCommand() *cli.Command {
	return &cli.Command{
		Name: "fmt", Usage: "lay a model file out", ArgsUsage: "FILE",
		Flags: []cli.Flag{&cli.BoolFlag{Name: "d", Usage: "do not write; fail if the layout differs"}},
		Action: func(ctx context.Context, c *cli.Command) error {
			name, err := file(c)
			if err != nil {
				return err
			}
			src, err := a.read(name)
			if err != nil {
				return err
			}
			out, list := frontend.Format(name, src)
			if list.HasErrors() {
				return wrong(list)
			}
			changed := string(out) != string(src)
			if changed && c.Bool("d") {
				return wrong(diag.List{diag.Errorf(diag.NotLaidOut, diag.At(diag.Pos{File: name}), "the layout is not the canonical one").
					WithRepair("run `ppc fmt %s`", name)})
			}
			if changed {
				if err := data.ReplaceFile(ctx, name, func(w io.Writer) error { _, err := w.Write(out); return err }); err != nil {
					return cannotWrite(name, err)
				}
			}
			if a.json {
				return a.printJSON(map[string]any{"changed": changed})
			}
			return nil
		},
	}
}

func (a *app) dumpCommand() *cli.Command {
	names, docs := passes.Names()
	help := "print the IR after this pass: "
	for i, n := range names {
		if i > 0 {
			help += ", "
		}
		help += fmt.Sprintf("%s (%s)", n, docs[i])
	}
	return &cli.Command{
		Name: "dump", Usage: "print the IR after a pass", ArgsUsage: "FILE",
		Flags: append(compileFlags(), &cli.StringFlag{Name: "after", Usage: help}),
		Action: func(ctx context.Context, c *cli.Command) error {
			name, err := file(c)
			if err != nil {
				return err
			}
			after := c.String("after")
			known := false
			for _, n := range names {
				known = known || n == after
			}
			if s := diag.Suggest(after, names); !known && s != "" {
				return usagef("there is no pass `%s`; did you mean `%s`?", after, s)
			}
			if !known {
				return usagef("-after wants a pass: %s", strings.Join(names, ", "))
			}
			o, err := a.options(c, name, "none")
			if err != nil {
				return err
			}
			text := ""
			o.Dump = func(pass, ir string) {
				if pass == after {
					text = ir
				}
			}
			if _, err := ppc.Compile(ctx, o); err != nil && text == "" {
				return refused(err)
			}
			if a.json {
				return a.printJSON(map[string]any{"pass": after, "ir": text})
			}
			fmt.Fprint(a.out, text)
			return nil
		},
	}
}
