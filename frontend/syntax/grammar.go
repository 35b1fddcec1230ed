package syntax

import (
	"io"
	"sync"

	"github.com/alecthomas/participle/v2"
	"github.com/alecthomas/participle/v2/lexer"

	"github.com/ppc-lang/ppc/diag"
)

// The grammar, as participle reads it from the field tags. Type names become
// the productions of docs/grammar.ebnf; lower.go turns these nodes into the
// tree of ast.go.
//
// One token decides everywhere: [separate] drops trailing commas and tells
// contextual words from names. So the parser never goes back (lookahead 0 in
// participle's count), takes linear time, and its error is at the first token
// that no text of the language can have there.
type (
	file struct {
		Decls []*decl `parser:"( @@ Sep )*"`
	}
	decl struct {
		Marks []*mark    `parser:"( @@ Sep? )*"`
		Imp   *importRef `parser:"( 'import' @@"`
		Const *constDecl `parser:"| @@"`
		Cell  *cellDecl  `parser:"| @@"`
		Pipe  *pipe      `parser:"| @@ )"`
	}
	importRef struct {
		Pos  lexer.Position
		Path string `parser:"@Text"`
	}
	constDecl struct {
		Name  *name   `parser:"'const' @@"`
		Type  *typ    `parser:"( ':' @@ )?"`
		Value *marked `parser:"'=' @@"`
	}
	cellDecl struct {
		Name    *name     `parser:"'cell' @@"`
		Params  *parms    `parser:"@@?"`
		Members []*member `parser:"'{' ( @@ Sep )* '}'"`
	}
	name struct {
		Pos  lexer.Position
		Text string `parser:"@Ident"`
	}
	parms struct {
		List []*parm `parser:"'(' ( @@ ( ',' @@ )* )? ')'"`
	}
	parm struct {
		Name  *name   `parser:"@@"`
		Type  *typ    `parser:"( ':' @@ )?"`
		Value *marked `parser:"( '=' @@ )?"`
	}
	typ struct {
		Pos    lexer.Position
		Name   string    `parser:"@( Ident | 'cell' | 'param' )"`
		Tensor bool      `parser:"( @'['"`
		Shape  []*marked `parser:"( @@ ( ',' @@ )* )? ']' )?"`
		EndPos lexer.Position
	}
	member struct {
		Pos       lexer.Position
		Buffer    bool        `parser:"( ( 'param' | @'buffer' )"`
		Storage   *parm       `parser:"@@"`
		Construct *construct  `parser:"| @@"`
		For       *memberLoop `parser:"| 'for' @@"`
		If        *memberCond `parser:"| 'if' @@"`
		Simple    *simple     `parser:"| @@ )"`
		EndPos    lexer.Position
	}
	memberLoop struct {
		Loop *loop     `parser:"@@"`
		Body []*member `parser:"'{' ( @@ Sep )* '}'"`
	}
	memberCond struct {
		Pos  lexer.Position
		Cond *marked     `parser:"@@"`
		Then []*member   `parser:"'{' ( @@ Sep )* '}'"`
		Elif *memberCond `parser:"( 'else' ( 'if' @@"`
		Else *memberBody `parser:"| @@ ) )?"`
	}
	memberBody struct {
		List []*member `parser:"'{' ( @@ Sep )* '}'"`
	}
	construct struct {
		Pos    lexer.Position
		Params *parms     `parser:"'construct' @@"`
		Body   *statement `parser:"@@"`
	}
	statement struct {
		List []*stmt `parser:"'{' ( @@ Sep )* '}'"`
	}
	stmt struct {
		Pos    lexer.Position
		Return []*marked `parser:"( 'return' @@ ( ',' @@ )*"`
		For    *stmtLoop `parser:"| 'for' @@"`
		If     *stmtCond `parser:"| 'if' @@"`
		Simple *simple   `parser:"| @@ )"`
		EndPos lexer.Position
	}
	stmtLoop struct {
		Loop *loop      `parser:"@@"`
		Body *statement `parser:"@@"`
	}
	stmtCond struct {
		Pos  lexer.Position
		Cond *marked    `parser:"@@"`
		Then *statement `parser:"@@"`
		Elif *stmtCond  `parser:"( 'else' ( 'if' @@"`
		Else *statement `parser:"| @@ ) )?"`
	}
	loop struct {
		Vars []*name `parser:"@@ ( ',' @@ )*"`
		In   *marked `parser:"'in' @@"`
	}
	simple struct {
		Targets []*postfix `parser:"@@ ( ',' @@ )*"`
		Values  []*marked  `parser:"( '=' @@ ( ',' @@ )* )?"`
	}
	pipe struct {
		Pos     lexer.Position
		Kind    string   `parser:"@( 'train':Keyword | 'infer':Keyword | 'eval':Keyword )"`
		Name    *name    `parser:"@@?"`
		Entries []*entry `parser:"'{' ( @@ Sep )* '}'"`
	}
	entry struct {
		Pos       lexer.Position
		Input     *input     `parser:"( @@"`
		Construct *construct `parser:"| @@"`
		Pipe      *pipe      `parser:"| @@"`
		Name      *name      `parser:"| @@"`
		Value     *marked    `parser:"'=' @@ )"`
		EndPos    lexer.Position
	}
	input struct {
		Pos   lexer.Position
		Name  *name   `parser:"'input':Keyword @@"`
		Type  *typ    `parser:"':' @@"`
		Marks []*mark `parser:"@@*"`
	}
	marked struct {
		X     *expr   `parser:"@@"`
		Marks []*mark `parser:"@@*"`
	}
	mark struct {
		Pos    lexer.Position
		Name   string `parser:"'@' @Ident"`
		Args   *args  `parser:"@@?"`
		EndPos lexer.Position
	}
	args struct {
		List []*arg `parser:"'(' ( @@ ( ',' @@ )* )? ')'"`
	}
	arg struct {
		Left  *marked `parser:"@@"`
		Value *marked `parser:"( '=' @@ )?"`
	}
	expr struct {
		X    *steps `parser:"@@"`
		Cond *or    `parser:"( 'if' @@"`
		Else *expr  `parser:"'else' @@ )?"`
	}
	steps struct {
		List []*or `parser:"@@ ( '|' @@ )*"`
	}
	or struct {
		List []*and `parser:"@@ ( 'or' @@ )*"`
	}
	and struct {
		List []*not `parser:"@@ ( 'and' @@ )*"`
	}
	not struct {
		Pos lexer.Position
		Not bool     `parser:"@'not'?"`
		X   *compare `parser:"@@"`
	}
	compare struct {
		Left  *span     `parser:"@@"`
		Op    *operator `parser:"( ( @@"`
		Right *span     `parser:") @@ )?"`
	}
	operator struct {
		Pos  lexer.Position
		Text string `parser:"@( '==' | '!=' | '<' | '<=' | '>' | '>=' )"`
	}
	span struct {
		Pos   lexer.Position
		Start bool `parser:"( @'..'"`
		Upto  *sum `parser:"@@?"`
		From  *sum `parser:"| @@"`
		Dots  bool `parser:"( @'..'"`
		To    *sum `parser:"@@? )? )"`
	}
	sum struct {
		Left *term   `parser:"@@"`
		Rest []*plus `parser:"@@*"`
	}
	plus struct {
		Pos lexer.Position
		Op  string `parser:"@( '+' | '-' )"`
		X   *term  `parser:"@@"`
	}
	term struct {
		Left *unary   `parser:"@@"`
		Rest []*times `parser:"@@*"`
	}
	times struct {
		Pos lexer.Position
		Op  string `parser:"@( '*' | '/' | '%' )"`
		X   *unary `parser:"@@"`
	}
	unary struct {
		Pos   lexer.Position
		Minus bool     `parser:"@'-'?"`
		X     *postfix `parser:"@@"`
	}
	postfix struct {
		Atom     *atom     `parser:"@@"`
		Suffixes []*suffix `parser:"@@*"`
	}
	suffix struct {
		Args   *args     `parser:"( @@"`
		Index  []*marked `parser:"| '[' @@ ( ',' @@ )* ']'"`
		Dot    *selector `parser:"| '.' @@ )"`
		EndPos lexer.Position
	}
	selector struct {
		Pos  lexer.Position
		Text string `parser:"@( Ident | Int )"`
	}
	atom struct {
		Pos    lexer.Position
		Number string `parser:"( @( Int | Float )"`
		Text   string `parser:"| @Text"`
		Name   string `parser:"| @Ident"`
		Paren  *expr  `parser:"| '(' @@ ')'"`
		List   *list  `parser:"| @@"`
		Map    *pairs `parser:"| @@ )"`
		EndPos lexer.Position
	}
	list struct {
		Items []*marked `parser:"'[' ( @@ ( ',' @@ )* )? ']'"`
	}
	pairs struct {
		List []*pair `parser:"'{' ( @@ ( ',' @@ )* Sep? )? '}'"`
	}
	pair struct {
		Key   *postfix `parser:"@@"`
		Value *marked  `parser:"':' @@"`
	}
)

// definition gives participle the tokens of [scan] and [separate].
type definition struct{}

var symbols = map[string]lexer.TokenType{
	"EOF": lexer.EOF, "Ident": lexer.TokenType(ident), "Keyword": lexer.TokenType(keyword), "Int": lexer.TokenType(integer),
	"Float": lexer.TokenType(float), "Text": lexer.TokenType(text), "Punct": lexer.TokenType(punct), "Sep": lexer.TokenType(sep),
}

func (definition) Symbols() map[string]lexer.TokenType { return symbols }

// Lex serves participle's own entry points; [Parse] hands over tokens that it
// has scanned already, because it wants every lexical error.
func (definition) Lex(file string, r io.Reader) (lexer.Lexer, error) {
	src, err := io.ReadAll(io.LimitReader(r, MaxFile))
	if err != nil {
		return nil, err
	}
	var list diag.List
	tokens := separate(scan(file, string(src), &list))
	if err := list.Err(); err != nil {
		return nil, err
	}
	return &stream{file: file, tokens: tokens}, nil
}

// stream hands out tokens.
type stream struct {
	file   string
	tokens []token
	at     int
	end    lexer.Position
}

func (s *stream) Next() (lexer.Token, error) {
	if s.at == len(s.tokens) {
		return lexer.EOFToken(s.end), nil
	}
	t := s.tokens[s.at]
	s.at++
	p := lexer.Position{Filename: s.file, Offset: t.offset, Line: t.line, Column: t.col}
	s.end = p
	return lexer.Token{Type: lexer.TokenType(t.kind), Value: t.text, Pos: p}, nil
}

var (
	fileParser = sync.OnceValue(func() *participle.Parser[file] {
		return participle.MustBuild[file](participle.Lexer(definition{}), participle.UseLookahead(0))
	})
	// declParser reads one declaration.
	declParser = sync.OnceValue(func() *participle.Parser[decl] {
		p, err := participle.ParserForProduction[decl](fileParser())
		if err != nil {
			panic(err)
		}
		return p
	})
)

// Grammar returns the grammar in the EBNF of participle.
func Grammar() string { return fileParser().String() + "\n" }
