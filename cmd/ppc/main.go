// Command ppc compiles and runs pipeline-parallel programs. It holds flags and printing, nothing else.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/urfave/cli/v3"

	"github.com/ppc-lang/ppc"
	"github.com/ppc-lang/ppc/diag"
	"github.com/ppc-lang/ppc/frontend"
	"github.com/ppc-lang/ppc/runtime"
)

func main() { os.Exit(Main()) }

// Main runs the command with the process's arguments and returns its exit code: 0 done; 1 the input is wrong or cannot be
// read; 2 the command line is wrong; 3 a write or a run failed.
func Main() int {
	a := &app{out: &output{w: os.Stdout}, err: os.Stderr, sources: map[string][]byte{}}
	ctx, stop := a.interrupts.until(context.Background())
	defer stop()
	return a.run(ctx, os.Args)
}

// app is one invocation.
type app struct {
	out     *output
	err     io.Writer
	json    bool
	unknown string            // a command that help was asked for and that does not exist
	sources map[string][]byte // files that were read, for excerpts
	quit    chan os.Signal    // asks what the ranks do
	interrupts
}

// output is standard output; it keeps the first error, which the command reports at its end.
type output struct {
	w   io.Writer
	err error
}

func (o *output) Write(b []byte) (int, error) {
	if o.err != nil {
		return 0, o.err
	}
	n, err := o.w.Write(b)
	o.err = err
	return n, err
}

// failure is an error with an exit code.
type failure struct {
	code   int
	err    error
	reason error // what a run ended with, where that says more than its text
}

func (f *failure) Error() string { return f.err.Error() }
func (f *failure) Unwrap() error { return f.err }

func wrong(err error) error { return &failure{code: 1, err: err} }

func usagef(format string, args ...any) error {
	return &failure{code: 2, err: diag.List{diag.Errorf(diag.BadCommandLine, diag.Range{}, format, args...)}}
}

// failed reports a run that ended early. Diagnostics keep their code: those about what was given to the run are wrong input.
func failed(err error) error {
	var list diag.List
	var saved *runtime.Preempted
	if _, ok := errors.AsType[*failure](err); ok {
		return err // of what this command does in the run
	}
	switch {
	case errors.As(err, &saved):
		list = diag.List{diag.Errorf(diag.RunFailed, diag.Range{}, "%v", saved).
			WithRepair("-resume %s goes on from it", saved.Path)}
	case errors.Is(err, context.Canceled):
		return &failure{code: 3, err: diag.List{diag.Errorf(diag.RunFailed, diag.Range{}, "interrupted")}, reason: err}
	case !errors.As(err, &list):
		var one diag.Diagnostic
		if !errors.As(err, &one) {
			one = diag.Errorf(diag.RunFailed, diag.Range{}, "%s", plain(err))
		}
		list = diag.List{one}
	}
	for _, d := range list {
		if strings.HasPrefix(string(d.Code), "E0") || d.Code == diag.CannotRead {
			return wrong(list)
		}
	}
	return &failure{code: 3, err: list, reason: err}
}

// refused reports what Compile found. Anything but diagnostics is a fault of the compiler, not of its input.
func refused(err error) error {
	if errors.Is(err, context.Canceled) {
		return failed(err)
	}
	list := ppc.Diagnostics(err)
	for _, d := range list {
		if d.Code == diag.CompilerFault {
			return &failure{code: 3, err: list}
		}
	}
	return wrong(list)
}

// cannotWrite reports a file or folder that could not be written.
func cannotWrite(name string, err error) error {
	var d diag.Diagnostic
	if errors.As(err, &d) {
		return &failure{code: 3, err: diag.List{d}}
	}
	return &failure{code: 3, err: diag.List{diag.Errorf(diag.CannotWrite, diag.At(diag.Pos{File: name}), "%s", plain(err))}}
}

// plain drops the names of the system call and of the path from what an error says of a path.
func plain(err error) string {
	var p *os.PathError
	var l *os.LinkError
	switch {
	case errors.As(err, &p):
		return strings.Replace(err.Error(), p.Error(), p.Err.Error(), 1)
	case errors.As(err, &l):
		return strings.Replace(err.Error(), l.Error(), l.Err.Error(), 1)
	}
	return err.Error()
}

func (a *app) run(ctx context.Context, args []string) int {
	err := a.root().Run(ctx, args)
	if err == nil && a.unknown != "" {
		err = unknownCommand(a.unknown)
	}
	if a.out.err != nil && (err == nil || errors.Is(err, a.out.err)) {
		err = cannotWrite("standard output", a.out.err)
	}
	if err == nil {
		return 0
	}
	var f *failure
	if !errors.As(err, &f) {
		f = &failure{code: 2, err: err} // only the parser of the command line reports in another way
	}
	list := ppc.Diagnostics(f)
	a.show(list, f.code == 2)
	if a.json || wantsJSON(args) {
		a.printJSON(map[string]any{"diagnostics": append(diag.List{}, list.Sorted()...)})
	}
	return f.code
}

// wantsJSON finds -json on a command line that the parser gave up before it came there.
func wantsJSON(args []string) bool {
	for _, s := range args {
		switch s {
		case "--":
			return false
		case "-json", "--json", "-json=true", "--json=true":
			return true
		}
	}
	return false
}

// show prints diagnostics on stderr; errors of the command line have no code and point to the help.
func (a *app) show(list diag.List, commandLine bool) {
	if commandLine {
		for _, d := range list {
			fmt.Fprintf(a.err, "ppc: %s\n", d.Message)
		}
		fmt.Fprintln(a.err, "run `ppc help` for the commands, `ppc help COMMAND` for its flags")
		return
	}
	diag.Render(a.err, list, func(file string) ([]byte, bool) {
		if src, ok := a.sources[file]; ok {
			return src, true
		}
		return frontend.Source(file)
	})
}

func (a *app) root() *cli.Command {
	root := &cli.Command{
		Name: "ppc", Usage: "compile a model for one device into a pipeline-parallel program, and run it",
		Writer: a.out, ErrWriter: a.err, HideVersion: true, HideHelpCommand: true,
		EnableShellCompletion:      true,
		ShellCompletionCommandName: "completion",
		ConfigureShellCompletionCommand: func(c *cli.Command) {
			c.Hidden, c.HideHelpCommand = false, true
			c.Usage = "print a completion script for bash, zsh, fish or pwsh"
			c.Action = func(_ context.Context, c *cli.Command) error {
				if s := c.Args().First(); s != "" {
					return usagef("no completion for `%s`; the shells are bash, zsh, fish and pwsh", s)
				}
				return usagef("completion wants a shell: bash, zsh, fish or pwsh")
			}
			c.OnUsageError = flagError
			for _, shell := range c.Commands {
				shell.OnUsageError = flagError
			}
		},
		Commands: slices.Concat([]*cli.Command{a.compileCommand(), a.runCommand()}, a.launchCommands(),
			[]*cli.Command{a.verifyCommand(), a.layoutCommand(), a.checkCommand(), a.fmtCommand(), a.dumpCommand(), a.versionCommand()}),
		Action: func(_ context.Context, c *cli.Command) error {
			if c.Args().Len() > 0 {
				return unknownCommand(c.Args().First())
			}
			cli.ShowRootCommandHelp(c)
			return usagef("a command is missing")
		},
		CommandNotFound: func(_ context.Context, _ *cli.Command, name string) { a.unknown = name },
		ExitErrHandler:  func(context.Context, *cli.Command, error) {},
		OnUsageError:    flagError,
	}
	for _, c := range root.Commands {
		c.OnUsageError = flagError
		c.Before = noEmptyValues
		c.DisableSliceFlagSeparator = true
		c.Flags = append(c.Flags, &cli.BoolFlag{Name: "json", Usage: "print one JSON object on stdout", Destination: &a.json})
	}
	root.Commands = append(root.Commands, helpCommand())
	return root
}

func helpCommand() *cli.Command {
	return &cli.Command{
		Name: "help", Usage: "show the commands, or the flags of one", ArgsUsage: "[COMMAND]", OnUsageError: flagError,
		Action: func(ctx context.Context, c *cli.Command) error {
			switch c.Args().Len() {
			case 0:
				return cli.ShowRootCommandHelp(c.Root())
			case 1:
				return cli.ShowCommandHelp(ctx, c.Root(), c.Args().First())
			}
			return usagef("help takes one command, got %d", c.Args().Len())
		},
	}
}

func unknownCommand(name string) error {
	names := []string{"compile", "run", "launch", "verify", "layout", "check", "fmt", "dump", "version", "completion", "help"}
	if s := diag.Suggest(name, names); s != "" {
		return usagef("unknown command `%s`; did you mean `%s`?", name, s)
	}
	return usagef("unknown command `%s`", name)
}

func (a *app) versionCommand() *cli.Command {
	return &cli.Command{
		Name: "version", Usage: "print the version",
		Action: func(_ context.Context, c *cli.Command) error {
			if c.Args().Len() > 0 {
				return usagef("version takes no argument")
			}
			if a.json {
				return a.printJSON(map[string]any{"version": ppc.Version})
			}
			fmt.Fprintln(a.out, "ppc", ppc.Version)
			return nil
		},
	}
}

// file returns the one positional argument.
func file(c *cli.Command) (string, error) {
	switch c.Args().Len() {
	case 0:
		return "", usagef("%s: the %s is missing", c.Name, c.ArgsUsage)
	case 1:
		if c.Args().First() == "" {
			return "", usagef("%s: the name of the %s is empty", c.Name, c.ArgsUsage)
		}
		return c.Args().First(), nil
	}
	return "", usagef("%s takes one %s, got %d: %s", c.Name, c.ArgsUsage, c.Args().Len(), strings.Join(c.Args().Slice(), " "))
}

// readSome reads a file, at most its first bytes: what has no end, such as a device, must not fill the memory.
func readSome(name string, most int64) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, most))
}

// read reads a source file and remembers it for excerpts.
func (a *app) read(name string) ([]byte, error) {
	src, err := readSome(name, frontend.MaxFile+1)
	if err != nil {
		d := diag.Errorf(diag.CannotRead, diag.At(diag.Pos{File: name}), "cannot read: %s", plain(err))
		if _, err := os.Stat(filepath.Join(name, "plan.yaml")); err == nil {
			d = d.WithRepair("this is a bundle, which `ppc run` takes; here the model file is meant")
		}
		return nil, wrong(diag.List{d})
	}
	a.sources[name] = src
	return src, nil
}
